"""The source: sessions, catalog, slot, publication, admission, and the replication stream.

Import from the modules themselves.
"""

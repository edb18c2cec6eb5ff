"""The source: sessions, catalog, slot, publication, admission, and the replication stream.

Import from the modules themselves. This file imports nothing, so that an executor which only reads
frames does not load libpq.
"""

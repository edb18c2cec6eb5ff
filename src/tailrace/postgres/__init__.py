"""The source: sessions, catalog, slot, publication, admission, and the replication stream.

Import from the modules themselves. What changes the source raises our own errors; what only reads
it lets psycopg.Error pass, because the caller knows best what it means: `sqlstate.source_error` for
most, `slot.classify` while streaming.
"""

"""Where the log's bytes live: files, object stores, memory, behind one small protocol."""

from tailrace.storage.file import FileStore
from tailrace.storage.memory import MemoryStore
from tailrace.storage.object import ObjectStore
from tailrace.storage.store import Data, Entry, ObjectExists, ObjectMissing, Store, is_outage
from tailrace.storage.url import open_store

__all__ = [
    "Data",
    "Entry",
    "FileStore",
    "MemoryStore",
    "ObjectExists",
    "ObjectMissing",
    "ObjectStore",
    "Store",
    "is_outage",
    "open_store",
]

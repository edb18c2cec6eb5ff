-- Up to where a table that went back to triggers came from the WAL. As long as the log is not past
-- it, changes of the table may be lost with the slot, though its triggers miss none.
ALTER TABLE tailrace.change_tracking ADD COLUMN IF NOT EXISTS wal_until pg_lsn;

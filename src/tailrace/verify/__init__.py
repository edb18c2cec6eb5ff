"""The proof that every lake table holds what its source holds, independent of how it got there.

Both sides turn each value into Postgres' own text, each row into one hash, and each range of the
key into a sum of hashes: the source by SQL in Postgres, the lake by the column in this process.
Nothing of the path that delivers changes is used on rows that are at rest, so a fault in it shows.
"""

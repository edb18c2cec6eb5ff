"""Buffers: what triggers have put aside, as the frames that Postgres would have sent for it."""

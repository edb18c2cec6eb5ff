"""Drains: what triggers have buffered, taken into the log while there is no slot to stream it."""

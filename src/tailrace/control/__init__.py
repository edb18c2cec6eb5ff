"""The schemas that Tailrace keeps in the source: made, brought up to date and removed here.

`tailrace` holds how each table is captured, and what is shown of it; `tailrace_changes` the buffers
that triggers write to. Import from the modules themselves.
"""

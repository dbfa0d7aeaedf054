"""Rows about the worker on a GPU, and the code that measures them. It uses only the standard library, because it is copied to
machines without other packages."""

"""Bytes in and out: who may ask, bodies within limits, streams, errors, and the process that listens."""

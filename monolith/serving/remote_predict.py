"""Kept for the historical path `remote_predict_ops`, which names nothing.

Calls from an entry model to parameter servers are made by the exported graph itself.
"""

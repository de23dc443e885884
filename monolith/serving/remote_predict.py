"""Kept for the historical path `remote_predict_ops`, which was empty in the original too.

Calls from an entry model to parameter servers are made by the exported graph itself.
"""

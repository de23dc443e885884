"""Tables over several servers: which server has an id, and how rows travel."""

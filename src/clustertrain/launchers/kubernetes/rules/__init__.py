"""What the operator, the API server, Pod Security and queues refuse: `check.py` asks each of the others."""

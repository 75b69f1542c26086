"""The Kubernetes objects of a job, as plain dicts; nothing here talks to a cluster."""

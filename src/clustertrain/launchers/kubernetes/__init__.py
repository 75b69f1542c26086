"""Jobs on Kubernetes: `submit.py` hands them over, `watch.py` looks at them, `rules/` says what is wrong."""

"""This machine, with Ray on it, or the Ray cluster that RAY_ADDRESS names."""

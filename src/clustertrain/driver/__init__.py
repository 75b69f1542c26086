"""The driver: one process per attempt that hands the job to Ray Train and writes how it ended."""

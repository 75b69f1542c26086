"""Where a job runs: each launcher starts an attempt and says how it ended."""

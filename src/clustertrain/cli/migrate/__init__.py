"""A job file from a script for sbatch, or from the command of another launcher.

    text ──Found──▶ job_text ──▶ job file

found.py        what was found: keys of the job, sizes, and the pieces that become neither
options.py      options of sbatch, srun and the launchers: what each sets, and how its value is read
launch_line.py  the command that starts the training
sbatch.py       a script: its #SBATCH lines, the lines that become slurm.setup, and its launch line
job_text.py     `Found` → the text of a job file, with its `resources` and comments
"""

"""A job file from the file or the command of another launcher.

    text ──Finding──▶ Launch ──job_text──▶ job file

finding.py      what was found: each piece of a file, and what becomes of it
options.py      the rows of options.yaml, which says what becomes of each option; the values of options
shape.py        nodes, processes, GPUs and memory → `resources`
launch_line.py  one command: its wrappers, its launcher, the script and its arguments
shell_script.py  a shell script: #SBATCH lines, variables, setup, and the launch
manifest.py     PyTorchJob, TrainJob and RayJob
python_program.py  mp.spawn and TorchTrainer
launch.py       reads any of these into a `Launch`, or names the lines that are not understood
job_text.py     `Launch` → the text of a job file with comments
tables.py       the tables of docs/migrate.md
"""

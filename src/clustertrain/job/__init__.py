"""The job file: the models of its sections, its reader, its errors, and the defaults of a site.

model.py        the whole file as one frozen model
common.py       the keys that every launcher understands, and the rules that join sections
launcher_plugins.py  the installed launchers, and their sections of the file
sections.py     the sections that every launcher has
train.py        the section `train`
settings_fields.py  their fields that are settings of the training loop
field_docstrings.py  the docstrings of their fields, for the schema and the reference
data_and_storage.py  the sections `data` and `storage`
values.py       the kinds of value: names, paths, URIs, counts, durations, sizes
file.py         read, validate and write job files
yaml_reader.py  YAML that remembers the line and column of each key and value
error_messages.py  the text of an error: the place, the value, the rule, the nearest valid key
references.py   ${CLUSTERTRAIN_…} in args and env, which the worker replaces
start_environment.py  which variables a process has from its start; hides the GPUs of a job without
code_folders.py  the folders of `code`, and their places in a copy of all of them
source.py       the user's code as text: the file, its syntax, the name in it
identity.py     which keys decide what is computed, and their hash
reference.py    the tables of docs/reference/job-file.md, from the models
loggers.py      the variables and the servers of the loggers in `train.log`
site.py         the defaults of a site
"""

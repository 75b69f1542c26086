"""The job file: the models of its sections, its reader, its errors, and the defaults of a site."""

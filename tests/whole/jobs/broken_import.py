import no_such_package


class Task(no_such_package.Task):
    """Its import fails."""

import no_such_package  # noqa: F401  the point of this file

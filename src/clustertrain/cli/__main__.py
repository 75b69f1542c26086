"""`python -m clustertrain.cli`."""

from clustertrain.cli.main import main

main()

"""The report of one or several runs as an HTML file, and the same in a terminal.

facts.py    what a report shows of a run, read from its files
curves.py   measured values over the steps, thinned out
page.py     the HTML file
one_run.py  the sections about one run
compare.py  several runs side by side
parts.py    tables and sections as HTML
svg.py      charts as SVG
watch.py    the curve and the ledger as text, for a terminal
"""

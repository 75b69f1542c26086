"""The report of one or several runs as an HTML file.

facts.py    what a report shows of a run, read from its files
curves.py   measured values over the steps, thinned out, and drawn
page.py     the HTML file
"""

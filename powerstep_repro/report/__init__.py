"""The report: a profile's findings, claims, figures and tables on one page, all generated."""

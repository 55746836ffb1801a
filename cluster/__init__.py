"""The product around engines and router: app builder, HTTP API, configuration, command line and lab.

Does not know the inside of pages.
"""

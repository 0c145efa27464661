"""The public functions: each does what the command of its name does.

They turn what a user has at hand into checked values, and call the phase that does the work. Imports in them are local,
so that `import raynas` stays light and a missing run directory is reported before torch is loaded.
"""

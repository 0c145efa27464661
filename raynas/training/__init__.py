"""Training a supernet or one network: what a step does (plan), with what settings (recipe), and the loop.

It knows neither Ray nor presets; `raynas.phases.train` runs it for a run directory."""

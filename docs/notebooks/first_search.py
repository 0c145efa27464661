# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A first search
#
# A supernet is trained on the embedded digits, searched under a limit of multiply-accumulates, and its winner is
# trained alone. All of it runs in this process, without Ray, in about a minute of one CPU. Run again, nothing is
# computed twice.

# %%
import matplotlib.pyplot  # noqa: F401 -- in Jupyter it lets figures show below their cells
import numpy as np

import raynas

here = raynas.Resources(workers=0, replicas=0)
space = raynas.load_space("digits/vit")
print(f"{space.cardinality():,} networks")

# %% [markdown]
# An arch is a value: a choice for each dimension. Its costs are counted without building it.

# %%
arch = space.sample(np.random.default_rng(0))
print(dict(arch))
print({name: int(values[0]) for name, values in raynas.cost(space, [arch]).items()})

# %% [markdown]
# ## Train
#
# Sixty epochs are what the preset wants; eight show how it goes.

# %%
run = raynas.train("digits", "runs/notebook", overrides={"recipe.epochs": 8}, resources=here, progress=print)
probes = run.table("probes").to_pandas()
print(probes[["epoch", "role", "macs", "accuracy"]].tail(5))

# %% [markdown]
# ## Search
#
# Subnets are scored with the weights that they inherit, on images that training has not seen.

# %%
winner = raynas.search_run(run, {"search.evaluations": 100}, resources=here)
print(winner.id, run.search().course().to_pandas().nlargest(5, "accuracy"))

# %%
run.plot_front()

# %%
run.plot_progress()

# %%
run.plot_arch()

# %% [markdown]
# ## Train the winner alone, and measure it
#
# `evaluate` is the only function that reads the test split.

# %%
raynas.retrain(run, overrides={"retrain.recipe.epochs": 8}, resources=here)
for row in raynas.evaluate(run):
    print(f"{row['how']:<12}{row['accuracy']:.1%} of {row['images']} images")
print(raynas.report(run))

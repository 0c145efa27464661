# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # A trained model adapted
#
# A trained network becomes the largest subnet of a supernet, which is adapted once and then searched for several
# budgets. Here the network is a small one that is trained first. With the name of a timm model in its place
# (`deit_small_patch16_224`, with `data="/data/flowers"`) everything else is the same.

# %%
import matplotlib.pyplot  # noqa: F401 -- in Jupyter it lets figures show below their cells

import raynas

here = raynas.Resources(workers=0, replicas=0)
short = {"recipe.epochs": 4, "search.evaluations": 30, "retrain.recipe.epochs": 4}
model = raynas.train("digits", "runs/notebook_model", overrides=short, resources=here)
raynas.search_run(model, resources=here)
raynas.retrain(model, resources=here)

# %% [markdown]
# The space that follows from a network can be looked at before anything is trained.

# %%
space = raynas.elastic_space("runs/notebook_model", preset="digits/preset_adapt")
print(f"{space.cardinality():,} networks, of {int(raynas.cost(space, [space.smallest()])['macs'][0]):,} MACs and more")

# %% [markdown]
# ## Adapt

# %%
small = {
    "recipe.epochs": 3,
    "adapt.finetune.recipe.epochs": 2,
    "adapt.images": 64,
    "adapt.untrained": 12,
    "retrain.recipe.epochs": 2,
    "search.evaluations": 60,
}
result = raynas.adapt(
    "runs/notebook_model",
    "runs/notebook_adapted",
    overrides=small,
    preset="digits/preset_adapt",
    resources=here,
    progress=print,
)
run = raynas.open_run("runs/notebook_adapted")
run.plot_front("macs")

# %% [markdown]
# ## Another budget
#
# It needs no further training, only a name.

# %%
half = int(raynas.cost(space, [space.largest()])["macs"][0]) // 2
raynas.search_run(run, {"search.constraints.macs": [None, half]}, name="half", resources=here)
print(run.searches())
run.plot_arch(run.search("half").winner)

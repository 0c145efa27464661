# ---
# jupyter:
#   jupytext:
#     text_representation: {extension: .py, format_name: percent}
#   kernelspec: {display_name: Python 3, language: python, name: python3}
# ---

# %% [markdown]
# # Which part of a recipe helps?
#
# A study: the same supernet is trained with and without parts of its recipe, each with several seeds, and the rows are
# compared pair by pair. This one starts a Ray of its own on this machine and takes a few minutes; more epochs and seeds
# decide more.

# %%
import matplotlib.pyplot  # noqa: F401 -- in Jupyter it lets figures show below their cells
import pandas

import raynas

study = {
    "title": "Parts of a recipe",
    "preset": "digits",
    "set": {
        "recipe.epochs": 3,
        "recipe.warmup_epochs": 1,
        "recipe.mixup": 0.0,
        "recipe.smoothing": 0.0,
        "search.evaluations": 20,
    },
    "toggles": {"Mixup": {"recipe.mixup": 0.2}, "smoothing": {"recipe.smoothing": 0.1}},
    "generate": "leave_one_out",
    "seeds": [0, 1],
    "measure": ["probes", "searched"],
}
rows = raynas.ablate(study, "runs/notebook_recipes", at_a_time=1)

# %% [markdown]
# A difference is decided if its 95 % interval leaves out zero. With two seeds it hardly ever does.

# %%
table = pandas.DataFrame(rows)
print(table.to_string())

# %% [markdown]
# ## The runs behind the rows
#
# Each supernet has a run directory of its own, in which everything can be looked up.

# %%
found = raynas.list_runs("runs/notebook_recipes")
print(pandas.DataFrame([{"run": one.run.rpartition("/")[2], "state": one.state, "best": one.result} for one in found]))

# %%
trials = [one.run for one in found if one.space is not None][:2]
compared = raynas.compare(trials)
for key, values in compared.differences.items():
    print(key, values)
compared.plot_front()

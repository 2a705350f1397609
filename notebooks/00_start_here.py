# %% [markdown]
# # Start here
#
# **What is in this repository, and in which order should you read it?** Its subject is **RLHF**,
# reinforcement learning from human feedback: people say which answers they prefer, and a language model is
# trained until it gives more answers of that kind. This page is the map: the pipeline, the models, the
# algorithms, and three ways to read. You need Python and PyTorch, some probability and derivatives (ten
# questions to try yourself: [the self-test](teaching/self_test.md)), but no reinforcement learning. The
# page takes about ten seconds to run, after start-up.
#
# **After this page you can** say which stages RLHF has and which model does what in them, and choose the
# pages that answer your question.
#
# In Colab or Kaggle, bring the repository's folder there and begin with `%cd glassbox/notebooks`: pages
# find the library by themselves ([guide](../docs/guide.md#install); not tried there).
#
# ## One file first
#
# [nano/rlhf.py](../nano/rlhf.py) is all of RLHF in one file of about 420 lines that needs only PyTorch:
# a world, a GPT, pre-training, comparisons, a reward model, GRPO, and what came of it. Read it from
# top to bottom; `python nano/rlhf.py` runs it in about 40 seconds. This is the heart of it:

# %%
try:
    from course import plots, saved_models
    from course.claims import holds

    from data.worlds import reviews
    from gpt.generate import SamplingParams
    from harness.seeds import make_generator
    from nano import rlhf
    from rl.batches.rollout import sample_rollout
    from rl.rewards.model import RewardModelReward
    from rl.rewards.reward import RuleReward
except ModuleNotFoundError as error:
    raise ImportError("run `make notebooks`, or choose the kernel of .venv") from error

plots.use()

# %%
plots.code(rlhf.grpo, ("# An answer's advantage", "descend("))

# %% [markdown]
# There are three places to go, each for its purpose. **To understand** an algorithm, read
# [nano](../nano/README.md), which has one short file for each paper. **To run** it, take its **engine**,
# the program in [rl](../rl/README.md) that trains with it: an engine takes real models, works in several
# processes and writes a report. **To decide** between algorithms, look at
# [the study](../docs/archive.md#every-engine-from-one-start), which ran all engines from one start.
#
# ## The whole story in ten seconds
#
# A small language model has learned to write product reviews. It knows the words, but it often
# praises the wrong thing or is rude. People compare pairs of its reviews. (Here a program plays the
# people, and it makes mistakes as they do.) A **reward model** learns from the comparisons. Then the
# **policy**, a copy of the language model, is trained to earn a high reward. Below are the model
# before and after, on the same prompts.

# %%
base, tokenizer = saved_models.base()
policy, _ = saved_models.policy()
judge, _ = saved_models.reward_model()

# %%
prompts = reviews.prompts("test")[:64]
gold_reward = RuleReward(reviews.gold_reward, "gold reward")
answers = {}
for name, model in (("before", base), ("after", policy)):
    rollout = sample_rollout(
        model, tokenizer, prompts, SamplingParams(max_new_tokens=48), 1, make_generator(0, "map")
    )
    answers[name] = rollout, RewardModelReward(judge)(rollout), gold_reward(rollout)

rows = []
for i in range(4):
    for name, (rollout, reward, gold) in answers.items():
        prompt = prompts[i].prompt.strip() if name == "before" else ""
        rows.append([prompt, name, rollout.responses[i], float(reward[i]), float(gold[i])])
plots.table(["prompt", "", "answer", "learned reward", "gold reward"], rows, number=".2f")

# %% [markdown]
# After training the answers are kind and polite. They are not perfect: one greets Noah although
# Grace asked, and one ends in a broken sentence.
#
# The learned reward is what training maximised. The **gold reward** is what was meant: 1 for a
# review that is kind, polite, well formed and about the right thing. A generated world lets us
# compute it. In the real world nobody can. Over all 64 prompts:

# %% tags=["hide-input"]
left, right = plots.panels(2)[1]
for axis, place, label in ((left, 1, "learned reward"), (right, 2, "gold reward")):
    values = {name: parts[place] for name, parts in answers.items()}
    plots.histograms(
        values, axis=axis, bins=16, styles={"before": "reference", "after": "policy"},
        xlabel=label, ylabel="answers",
    )  # fmt: skip
gain = float((answers["after"][2] - answers["before"][2]).mean())
print(f"the gold reward rose by {gain:.2f} on average")
holds(gain > 0.25, "the gold reward rises by more than 0.25")
learned = float((answers["after"][1] - answers["before"][1]).mean())
holds(learned > 1, "the learned reward rises by more than one of its standard deviations")
unchanged = (answers["after"][2] <= answers["before"][2]).float().mean()
holds(unchanged < 0.5, "most answers are better than before")

# %% [markdown]
# ## The pipeline
#
# There are four stages, and each has its command. **Pre-training** gives a model its language.
# **Fine-tuning** lets it imitate good answers. The **reward model** learns from comparisons what people
# prefer. Then **reinforcement learning** trains the policy to earn what the reward model pays. Each stage
# leaves a folder in `runs/`, and the next stage finds it there. `make demo` runs all of it, up to the
# better policy, in a few minutes.

# %%
plots.diagram("pipeline")

# %% [markdown]
# ## The models of PPO
#
# The loop in the box `rl/` needs more than one model. PPO, an algorithm that many pages compare others
# with, has four. The **policy** writes the answers and learns. The **reference** is a frozen copy of the
# policy from before training, and the policy pays for its distance from it, so that it is held as if on a
# leash. The **reward model** scores whole answers. The **critic** predicts, at every token, the reward that
# is still to come. GRPO, the algorithm of page 07, leaves out the critic, because it compares each answer
# with other answers to the same prompt.

# %%
plots.diagram("four_models")

# %% [markdown]
# ## The algorithms
#
# Neighbours differ in a line or two, so each engine is one file (PPO's losses are in a second) that
# reads like its paper's algorithm box: [rl/README.md](../rl/README.md).

# %%
plots.diagram("algorithm_map")

# %% [markdown]
# ## Three ways to read
#
# **An hour: what is GRPO?** [nano/rlhf.py](../nano/rlhf.py), then [07 GRPO](07_grpo.ipynb) without its
# exercises. Then run `make demo ARGS="--budget small"` and open the report that it names at its end.
#
# **A day (one reader took ten hours): RLHF from nothing.** Seven pages with their exercises: [02 tokens and
# masks](02_tokens_padding_masks.ipynb), [04 policy gradients](04_policy_gradients_and_baselines.ipynb), [05
# what a KL is](05_what_a_kl_is.ipynb), [06 the reward model](06_reward_model.ipynb), [07
# GRPO](07_grpo.ipynb) with its short companion [26 what a loss is divided
# by](26_what_a_loss_is_divided_by.ipynb), [08 KL estimators](08_kl_estimators.ipynb) and [14 DPO and its
# neighbours](14_dpo_and_pg_grpo.ipynb). If transformers are new to you, read
# [01](01_gpt2_from_scratch.ipynb) first. These pages answer questions 1 to 5, 7 and 9 to 13 of the exam.
#
# **A week: all of it**, in the order of the numbers, but 26 right after 07 and 25 right after 18. The
# exam at the end of [22 your own](22_your_own.ipynb) shows what you remember.
#
# **For practice**, if you know the losses and have a model to steer: [23 is it
# better?](23_is_it_better.ipynb) on evaluating a policy, and [24 from these pieces to a
# recipe](24_from_these_pieces_to_a_recipe.ipynb) on what published models do and what changes at scale.
# [25 steering a published model](25_steering_a_published_model.ipynb) reads recorded runs of one.
# **To teach** with these pages: [teaching](teaching/README.md).
#
# [notebooks/README.md](README.md) says what each page is about. If you have only the hour, skip what
# does not make sense yet; page 02 explains the masks and page 04 the advantages. Six sliders to play
# with go with the pages: [docs/explorables.md](../docs/explorables.md).
#
# **What you meet on a page.** `check(name, function)` tries your function on small numbers and names the
# mistake that it recognises; `check_answer` does it for a number or a word that you enter.
# `holds(condition, sentence)` checks a sentence of the text against the numbers above it. It is silent
# while the sentence is true. If you change something and the sentence becomes false, it prints the
# sentence. Cells that only draw are folded: click to open one.
#
# Nearly every page has the same rhythm: a question, an example small enough to check by hand, the
# formula, a few lines of code, the same from the library, a picture, and exercises. In the plots a
# colour means the same on every page: blue is the policy, grey the reference, orange a learned
# reward, green the gold reward, pink a critic, light blue a teacher, black an exact number, and
# vermilion a trap.
#
# Words and symbols are in [docs/glossary.md](../docs/glossary.md).
#
# ## To remember
#
# - Pre-training gives a policy its language, comparisons give a reward model, and reinforcement learning
#   raises what that model pays, on a leash to the place where the policy began.
# - Policy, reference, reward model and critic are built alike: they are copies of one kind of network with
#   different weights and heads, and only the policy and the critic learn in the loop.
# - Predict before you run a cell. What you guessed wrong is what you will remember.
#
# Next: [01_gpt2_from_scratch](01_gpt2_from_scratch.ipynb). All these models are built
# alike, so one question serves for all: what goes in, and what comes out?

"""What makes `DistributionalPPO` look and behave like the recurrent PPO of sb3-contrib.

`arguments` and `policies` put its keywords onto a `Config`; `sources`, `vec` and `facades` take every kind of environment and
show it as stable-baselines3's VecEnv; `watch`, `callbacks` and `log` run its callbacks; `answers` predicts; `files` saves.

stable-baselines3 is never imported from here unless the caller has done so already.
"""

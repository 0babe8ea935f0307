#!/bin/sh
# a benchmark of CleanRL
OMP_NUM_THREADS=1 xvfb-run -a poetry run python cleanrl/dqn.py \
    --env-id Acrobot-v1 --seed 3 --learning-rate 1e-3 \
    --no_cuda --track --capture_video --target-network-frequency=500

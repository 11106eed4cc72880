"""Figure 2: ten generative models, their IPC measured and their trainings' published cost."""

"""Answers nnU-Net where `nnUNet_extTrainer` still names this folder; goes with version 0.2."""

raise ImportError("set nnUNet_extTrainer to medddpm.fast.clients.nnunet.FOLDER: the trainers have moved there")

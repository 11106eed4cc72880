"""The rules of networks that are known, a file for each family: `UNet3D`, MONAI's, nnU-Net's."""

"""ViT-Res: stages of transformer blocks behind a convolutional stem, joined by residual spatial reductions."""

"""ViT-Res: a convolutional stem, then stages of transformer blocks joined by residual spatial reductions."""

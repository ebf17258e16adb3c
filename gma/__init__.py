"""Gaussian Mixture Attention: linear-time attention through K learned Gaussian components (arXiv 2606.18283)."""

from gma.attention import GaussianMixtureAttention, start_means_from_data
from gma.backbone import Block, SequenceModel
from gma.embedding import (
    ContinuousEmbedding,
    GridPositions,
    LearnedPositions,
    NoPositions,
    SinusoidalPositions,
    TokenEmbedding,
)
from gma.heads import ClsHead, Head, LanguageModelHead, MeanPoolHead, PairHead
from gma.memory_mixer import MemoryMixer
from gma.mixer import SequenceMixer
from gma.mixture import GaussianMixture
from gma.multi_head import MultiHeadMixer

__all__ = [
    "Block",
    "ClsHead",
    "ContinuousEmbedding",
    "GaussianMixture",
    "GaussianMixtureAttention",
    "GridPositions",
    "Head",
    "LanguageModelHead",
    "LearnedPositions",
    "MeanPoolHead",
    "MemoryMixer",
    "MultiHeadMixer",
    "NoPositions",
    "PairHead",
    "SequenceMixer",
    "SequenceModel",
    "SinusoidalPositions",
    "TokenEmbedding",
    "start_means_from_data",
]

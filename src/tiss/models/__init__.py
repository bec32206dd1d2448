"""Models: encoder → decoder → head, one output contract."""

from tiss.models.decoder import DECODERS, HEADS, Decoder, Head, Initialise, LinearDecoder, RandomHead
from tiss.models.encoder import ENCODERS, Encoder, EncoderOptions, Level, Need, Tuned, make_encoder, outline
from tiss.models.folder import CARD, CONFIG, WEIGHTS, file_hash, find_folder, from_pretrained, write_model
from tiss.models.model import (
    Architecture,
    Fused,
    Output,
    Resolution,
    Rule,
    SegmentationModel,
    build_model,
    choose_labels,
    comparable,
    list_encoders,
    resolve,
    tokens,
)
from tiss.models.pretrained import load_pretrained

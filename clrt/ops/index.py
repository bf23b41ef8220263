"""Modules of clrt.ops by what they define; written by `python tools/op_index.py`."""

# Titles of the ops that a module registers.
OPS = {
    "attention.attention": "Attention",
    "attention.cache_states": "clrt.CacheStates",
    "attention.fused_attention": "clrt.FusedAttention",
    "attention.fused_rotary": "clrt.FusedRotary",
    "attention.paged_attention": "clrt.PagedAttention",
    "attention.rotate_and_cache": "clrt.RotateAndCache",
    "attention.tensor_scatter": "TensorScatter",
    "attention.update_cache": "clrt.UpdateCache",
    "control.control_flow": "If Loop Scan",
    "control.maps": "ai.onnx.ml.CastMap ai.onnx.ml.DictVectorizer ai.onnx.ml.ZipMap",
    "control.sequences": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt
        SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
        SplitToSequence
    """,
    "conv.channels_last": "clrt.ChannelsLastConv",
    "conv.col2im": "Col2Im",
    "conv.conv": "Conv clrt.FusedConv",
    "conv.conv_integer": "ConvInteger",
    "conv.conv_quantized": "clrt.ChannelsLastQuantizedConv",
    "conv.conv_transpose": "ConvTranspose",
    "conv.deform_conv": "DeformConv",
    "generation.sample_tokens": "clrt.SampleTokens",
    "matmul.det": "Det",
    "matmul.einsum": "Einsum",
    "matmul.fused_matmul": "clrt.FusedMatMul",
    "matmul.gemm": "Gemm",
    "matmul.inverse": "com.microsoft.Inverse",
    "matmul.matmul": "MatMul",
    "matmul.matmul_integer": "MatMulInteger",
    "matmul.matmul_nbits": "com.microsoft.MatMulNBits",
    "matmul.quantized_gather": "clrt.QuantizedGather",
    "matmul.quantized_matmul": "clrt.QuantizedMatMul",
    "matmul.rounded_matmul": "clrt.RoundedMatMul",
    "matmul.routed_matmul": "clrt.RoutedMatMul",
    "ml.decision_trees": "clrt.DecisionTrees",
    "ml.lookup": "clrt.Lookup",
    "ml.svm": "clrt.CouplePairs clrt.SquaredDistance",
    "movement.concat": "Concat Split",
    "movement.depth_to_space": "DepthToSpace SpaceToDepth",
    "movement.expand": "Expand Tile",
    "movement.gather": "Gather",
    "movement.gather_elements": "GatherElements",
    "movement.gather_nd": "GatherND ScatterND",
    "movement.pad": "Pad",
    "movement.reverse_sequence": "ReverseSequence",
    "movement.scatter_elements": "ScatterElements",
    "movement.slice": "Slice",
    "movement.transpose": "Transpose",
    "movement.trilu": "Trilu",
    "movement.views": "Flatten Identity Reshape Squeeze Unsqueeze",
    "norm.batch_normalization": "BatchNormalization",
    "norm.group_normalization": "GroupNormalization",
    "norm.group_normalization_last": "clrt.ChannelsLastGroupNormalization",
    "norm.hardmax": "Hardmax",
    "norm.instance_normalization": "InstanceNormalization",
    "norm.layer_normalization": "LayerNormalization",
    "norm.lp_normalization": "LpNormalization",
    "norm.rms_normalization": "RMSNormalization",
    "norm.softmax": "LogSoftmax Softmax",
    "pointwise.activations": "Celu Elu HardSigmoid LeakyRelu PRelu Selu Swish ThresholdedRelu",
    "pointwise.cast": "BitCast Cast",
    "pointwise.dynamic_quantize_linear": "DynamicQuantizeLinear",
    "pointwise.fused": "clrt.Fused clrt.Literal",
    "pointwise.quantize_linear": "DequantizeLinear QuantizeLinear",
    "pointwise.round_to_scale": "clrt.RoundToScale",
    "pointwise.table": """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
        BitwiseXor Ceil Cos Cosh Div Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSwish
        IsInf IsNaN Less LessOrEqual Log Mish Mod Mul Neg Not Or Pow Reciprocal Relu Round
        Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Tan Tanh Where Xor
    """,
    "pointwise.variadic": "Clip Max Mean Min Sum",
    "random.dropout": "Dropout",
    "random.multinomial": "Multinomial",
    "random.random_tensor": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "recurrent.dynamic_quantize_lstm": "com.microsoft.DynamicQuantizeLSTM",
    "recurrent.gru": "GRU",
    "recurrent.lstm": "LSTM",
    "recurrent.rnn": "RNN",
    "reduce.argmax": "ArgMax ArgMin",
    "reduce.cum_sum": "CumProd CumSum",
    "reduce.reduce": """
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
        ReduceSum ReduceSumSquare
    """,
    "reduce.top_k": "TopK",
    "signal.dft": "DFT STFT",
    "signal.dynamic_time_warping": "com.microsoft.DynamicTimeWarping",
    "signal.mel_weight_matrix": "MelWeightMatrix",
    "tensor.constant_of_shape": "ConstantOfShape",
    "tensor.eye_like": "EyeLike",
    "tensor.non_zero": "Compress NonZero",
    "tensor.one_hot": "OneHot",
    "tensor.range": "Range",
    "tensor.shape": "Shape Size",
    "tensor.unique": "Unique",
    "text.bifurcation_detector": "com.microsoft.BifurcationDetector",
    "text.murmur_hash3": "com.microsoft.MurmurHash3",
    "text.strings": "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer",
    "text.tokenizer": "com.microsoft.Tokenizer",
    "vision.best_boxes": "clrt.BestBoxes clrt.ListBoxes",
    "vision.grid_sample": "GridSample",
    "vision.image_decoder": "ImageDecoder",
    "vision.max_roi_pool": "MaxRoiPool",
    "vision.non_max_suppression": "NonMaxSuppression",
    "vision.pooling": "AveragePool GlobalAveragePool GlobalMaxPool LpPool MaxPool",
    "vision.pooling_last": "clrt.ChannelsLastAveragePool clrt.ChannelsLastMaxPool",
    "vision.resize": "Resize",
    "vision.resize_image": "clrt.ResizeImage",
    "vision.roi_align": "RoiAlign",
}

# Titles of the ops that import decompositions replace.
IMPORT_RULES = {
    "decompositions.import_rules.bernoulli": "Bernoulli",
    "decompositions.import_rules.experimental": """
        Affine ConstantFill Crop DynamicSlice ImageScaler ParametricSoftplus Scale ScaledTanh
    """,
    "decompositions.import_rules.linear": """
        ai.onnx.ml.LinearClassifier ai.onnx.ml.LinearRegressor
    """,
    "decompositions.import_rules.microsoft.attention": """
        com.microsoft.Attention com.microsoft.DecoderMaskedMultiHeadAttention
        com.microsoft.DecoderMaskedSelfAttention com.microsoft.MultiHeadAttention
    """,
    "decompositions.import_rules.microsoft.attn_lstm": "com.microsoft.AttnLSTM",
    "decompositions.import_rules.microsoft.four_bit_formats": """
        com.microsoft.MatMulBnb4 com.microsoft.MatMulFpQ4
    """,
    "decompositions.import_rules.microsoft.fourier": """
        com.microsoft.ComplexMul com.microsoft.ComplexMulConj com.microsoft.Irfft
        com.microsoft.Rfft
    """,
    "decompositions.import_rules.microsoft.fusions": """
        SimplifiedLayerNormalization com.microsoft.BiasAdd com.microsoft.BiasDropout
        com.microsoft.BiasGelu com.microsoft.BiasSoftmax com.microsoft.BiasSplitGelu
        com.microsoft.CausalConvWithState com.microsoft.EmbedLayerNormalization
        com.microsoft.FastGelu com.microsoft.FusedConv com.microsoft.FusedGemm
        com.microsoft.FusedMatMul com.microsoft.FusedMatMulActivation com.microsoft.Gelu
        com.microsoft.GemmFastGelu com.microsoft.GroupNorm com.microsoft.IsAllFinite
        com.microsoft.NhwcConv com.microsoft.NhwcFusedConv com.microsoft.QuickGelu
        com.microsoft.RotaryEmbedding com.microsoft.SimplifiedLayerNormalization
        com.microsoft.SkipGroupNorm com.microsoft.SkipLayerNormalization
        com.microsoft.SkipSimplifiedLayerNormalization com.microsoft.TorchEmbedding
        com.microsoft.TransposeMatMul
    """,
    "decompositions.import_rules.microsoft.gates": """
        com.microsoft.BranchwiseRMSNorm com.microsoft.GatedAdd com.microsoft.GatedRMSNorm
        com.microsoft.LinearAttentionGate com.microsoft.ScaledSiLU
    """,
    "decompositions.import_rules.microsoft.group_query_attention": """
        com.microsoft.GroupQueryAttention
    """,
    "decompositions.import_rules.microsoft.images": """
        com.microsoft.ConvTransposeWithDynamicPads com.microsoft.CropAndResize
        com.microsoft.MaxpoolWithMask
    """,
    "decompositions.import_rules.microsoft.linear_attention": "com.microsoft.LinearAttention",
    "decompositions.import_rules.microsoft.moe": "com.microsoft.MoE com.microsoft.QMoE",
    "decompositions.import_rules.microsoft.nchwc": """
        com.microsoft.nchwc.AveragePool com.microsoft.nchwc.Conv
        com.microsoft.nchwc.GlobalAveragePool com.microsoft.nchwc.GlobalMaxPool
        com.microsoft.nchwc.MaxPool com.microsoft.nchwc.ReorderInput
        com.microsoft.nchwc.ReorderOutput com.microsoft.nchwc.Upsample
    """,
    "decompositions.import_rules.microsoft.positions": """
        com.microsoft.GatedRelativePositionBias com.microsoft.GemmaRotaryEmbedding
        com.microsoft.MRotaryEmbedding com.microsoft.RelativePositionBias
    """,
    "decompositions.import_rules.microsoft.quantised": """
        com.microsoft.DequantizeLinear com.microsoft.DynamicQuantizeMatMul
        com.microsoft.GatherBlockQuantized com.microsoft.MatMulInteger16
        com.microsoft.MatMulIntegerToFloat com.microsoft.MatMulNBits com.microsoft.MulInteger
        com.microsoft.NhwcMaxPool com.microsoft.QAttention
        com.microsoft.QEmbedLayerNormalization com.microsoft.QGemm com.microsoft.QLinearAdd
        com.microsoft.QLinearAveragePool com.microsoft.QLinearConcat com.microsoft.QLinearConv
        com.microsoft.QLinearGlobalAveragePool com.microsoft.QLinearLeakyRelu
        com.microsoft.QLinearMul com.microsoft.QLinearReduceMean com.microsoft.QLinearSigmoid
        com.microsoft.QLinearSoftmax com.microsoft.QLinearWhere com.microsoft.QuantizeLinear
    """,
    "decompositions.import_rules.microsoft.sparse": "com.microsoft.SparseAttention",
    "decompositions.import_rules.microsoft.tensors": """
        com.microsoft.CDist com.microsoft.ExpandDims com.microsoft.GatherND
        com.microsoft.GridSample com.microsoft.NGramRepeatBlock com.microsoft.Pad
        com.microsoft.Range com.microsoft.SampleOp com.microsoft.Trilu
        com.microsoft.UnfoldTensor com.microsoft.Unique com.microsoft.WordConvEmbedding
    """,
    "decompositions.import_rules.microsoft.unpadded_batches": """
        com.microsoft.PackedAttention com.microsoft.PackedMultiHeadAttention
        com.microsoft.RemovePadding com.microsoft.RestorePadding
    """,
    "decompositions.import_rules.ml_features": """
        ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.Binarizer ai.onnx.ml.CategoryMapper
        ai.onnx.ml.FeatureVectorizer ai.onnx.ml.Imputer ai.onnx.ml.LabelEncoder
        ai.onnx.ml.Normalizer ai.onnx.ml.OneHotEncoder ai.onnx.ml.Scaler
    """,
    "decompositions.import_rules.normalization": "BatchNormalization",
    "decompositions.import_rules.old_opsets": """
        Add And Cast Concat Div Equal Greater Less LpPool Mul Or PRelu Pad Pow Reshape Scatter
        Selu Split Sub Tile Upsample Xor
    """,
    "decompositions.import_rules.onnx_body_fixes": """
        AffineGrid CastLike CenterCropPad MeanVarianceNormalization Shrink
    """,
    "decompositions.import_rules.pooling": "GlobalLpPool LRN MaxUnpool",
    "decompositions.import_rules.quantized": "QLinearConv QLinearMatMul",
    "decompositions.import_rules.rotary": "RotaryEmbedding",
    "decompositions.import_rules.svm": "ai.onnx.ml.SVMClassifier ai.onnx.ml.SVMRegressor",
    "decompositions.import_rules.training": """
        ai.onnx.preview.training.Adagrad ai.onnx.preview.training.Adam
        ai.onnx.preview.training.Momentum
    """,
    "decompositions.import_rules.trees": """
        ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier
        ai.onnx.ml.TreeEnsembleRegressor
    """,
}

# Op classes that the decompositions of planner and optimiser replace.
LOWERING_RULES = {
    "decompositions.lowering_rules.compress": "tensor.non_zero.Compress",
    "decompositions.lowering_rules.einsum": "matmul.einsum.Einsum",
    "decompositions.lowering_rules.gradients": """
        attention.attention.Attention norm.batch_normalization.BatchNormalization
        norm.group_normalization.GroupStatistics norm.lp_normalization.LpNormalization
    """,
    "decompositions.lowering_rules.if_branches": "control.control_flow.If",
    "decompositions.lowering_rules.non_max_suppression": """
        vision.non_max_suppression.NonMaxSuppression
    """,
    "decompositions.lowering_rules.normalization": "norm.layer_normalization.Normalization",
    "decompositions.lowering_rules.unroll_loops": """
        control.control_flow.Loop control.control_flow.Scan
    """,
    "decompositions.lowering_rules.update_cache": "attention.update_cache.UpdateCache",
    "decompositions.lowering_rules.variadic": "pointwise.variadic.Variadic",
}

# Op classes of the last nodes of regions that launch fusion rules match.
FUSION_RULES = {
    "attention.attention_fusion": "norm.layer_normalization.Normalization",
    "matmul.gemm_norm_fusion": "norm.layer_normalization.Normalization",
    "matmul.norm_gemm_fusion": "matmul.matmul.MatrixProduct",
    "matmul.tied_embedding_fusion": "movement.gather.Gather",
    "pointwise.fused": "norm.layer_normalization.Normalization",
}

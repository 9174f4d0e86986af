"""Models that run elsewhere: a folder with an ONNX file and one script, for onnxruntime, numpy and Pillow.

    export_predictor(predictor, "folder", rule=rule)      writes the folder
    OnnxPredictor("folder").predict_proba("cat.jpg")      runs it from here, without torch
    python folder/predict.py cat.jpg                      runs it anywhere, without calprompt

Importing this package takes neither torch nor onnxruntime.
"""

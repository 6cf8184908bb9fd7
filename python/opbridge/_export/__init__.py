"""What opbridge.export is made of: targets (which call becomes which operator), dynamo and torchscript (the two
exporters), model (the finishing touches both share), check (is the result the model?)."""

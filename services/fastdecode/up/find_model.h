// find_model.h: a model by its name in a folder of models.
#ifndef FD_FASTDECODE_UP_FIND_MODEL_H
#define FD_FASTDECODE_UP_FIND_MODEL_H

#include <stddef.h>

#include "common/base/status.h"

#define MODELS_DIR_HELP "folder of models that --model may name: NAME is NAME, NAME.gguf, or the one file that begins with NAME"

// Writes the path of what --model says: a file or directory that is there, else the one in `folder` that has the name, with .gguf or
// without, or that is the only one to begin with it; of a file in several parts the first. NOT_FOUND: there is none, or there are several,
// and *error says which models are in the folder (error->about_model). name: NULL: not given. The folder may be missing.
enum status find_model(const char *name, const char *folder, char *out, size_t bytes, struct error *error) MUST_CHECK;

#endif

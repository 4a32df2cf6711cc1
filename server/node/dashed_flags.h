// Flags may be written with dashes: --node-ranks is --node_ranks, which is all that Abseil's flags
// know.
#ifndef OPTSHARD_SERVER_NODE_DASHED_FLAGS_H_
#define OPTSHARD_SERVER_NODE_DASHED_FLAGS_H_

#include <cstring>

namespace optshard {

// Makes underscores of the dashes within the flags' names, in place; not of their values, nor of
// what follows "--".
inline void UnderscoreFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--") == 0) return;
    if (argv[i][0] != '-') continue;
    const size_t dashes = argv[i][1] == '-' ? 2 : 1;
    for (char* at = argv[i] + dashes; *at != '\0' && *at != '='; ++at) {
      if (*at == '-') *at = '_';
    }
  }
}

}  // namespace optshard

#endif  // OPTSHARD_SERVER_NODE_DASHED_FLAGS_H_

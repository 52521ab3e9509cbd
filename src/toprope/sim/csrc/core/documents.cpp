// Reading of the file of refused dtypes; see documents.h.
//
// Tests: tests/sim/simulated/test_refused_dtypes.py and test_refused_dimensions.py.
#include "documents.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>
#include <unordered_map>

namespace toprope::sim {

namespace {

std::unordered_map<std::string, Rules>& documents() {
  static auto* all = new std::unordered_map<std::string, Rules>();
  return *all;
}

std::string vendor_names[64];

std::string field(std::istringstream& line) {
  std::string text;
  std::getline(line, text, '\t');
  return text;
}

}  // namespace

int load_documents(const char* path) {
  std::ifstream file(path);
  if (!file) return errno != 0 ? errno : ENOENT;
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string tag = field(line), key = field(line);
    if (tag == "dtype") {
      vendor_names[atoi(key.c_str()) & 63] = field(line);
    } else if (tag == "rule" || tag == "dimensions") {
      auto [place, is_new] = documents().try_emplace(key);
      Rules& rules = place->second;
      if (is_new) {  // arguments that the vendor does not check
        for (uint64_t& known : rules.known) known = ~uint64_t{0};
        for (int64_t& most : rules.dimensions) most = std::numeric_limits<int64_t>::max();
      }
      int position = atoi(field(line).c_str());
      if (position < 0 || position >= kPositions) continue;
      if (tag == "dimensions") {
        rules.dimensions[position] = atoi(field(line).c_str());
        rules.larger[position] = field(line);
        continue;
      }
      rules.refused[position] = strtoull(field(line).c_str(), nullptr, 16);
      rules.known[position] = strtoull(field(line).c_str(), nullptr, 16);
      rules.kernel = field(line);
      rules.sentence[position] = field(line);
    }
  }
  return 0;
}

const Rules* rules_of(const std::string& name) {
  const auto& all = documents();
  if (all.empty()) return nullptr;
  auto found = all.find(name.substr(0, name.find('.')) + ".*");  // all overloads alike
  if (found == all.end()) found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

const char* vendor_dtype(int dtype) {
  const std::string& name = vendor_names[dtype & 63];
  return name.empty() ? "DT_UNDEFINED" : name.c_str();
}

}  // namespace toprope::sim

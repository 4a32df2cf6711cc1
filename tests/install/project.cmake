# A project of a user: CMakeLists.txt of tests/install/cmake_test.py.
cmake_minimum_required(VERSION 3.18)
project(user CXX)

find_package(optshard REQUIRED)
find_package(Protobuf REQUIRED)

# The trainer of the README.
add_executable(readme_trainer readme_trainer.cc)
target_link_libraries(readme_trainer optshard::client)

# A trainer with a protobuf of its own, and with optshard's messages.
execute_process(
  COMMAND
    ${Protobuf_PROTOC_EXECUTABLE} --cpp_out=${CMAKE_BINARY_DIR} --proto_path=${CMAKE_SOURCE_DIR}
    --proto_path=${optshard_PROTO_DIR} report.proto proto/optshard/v1/common.proto
    proto/optshard/v1/coordinator.proto COMMAND_ERROR_IS_FATAL ANY)
add_executable(
  own_protobuf
  own_protobuf.cc ${CMAKE_BINARY_DIR}/report.pb.cc ${CMAKE_BINARY_DIR}/proto/optshard/v1/common.pb.cc
  ${CMAKE_BINARY_DIR}/proto/optshard/v1/coordinator.pb.cc)
target_include_directories(own_protobuf PRIVATE ${CMAKE_BINARY_DIR})
target_link_libraries(own_protobuf optshard::client protobuf::libprotobuf)

# A program that is no trainer.
add_executable(asks_coordinator asks_coordinator.cc)
target_link_libraries(asks_coordinator optshard::control)

# Writes the files of assets/ as arrays in C, which src/report/view.c declares.
set(COUPLET_ASSETS view.html view.css view.js charts.json)

# Writes `file` if its content has changed.
function(write_asset_texts file)
    set(text "/* written by cmake/asset_texts.cmake */\n\n")
    foreach(asset IN LISTS COUPLET_ASSETS)
        set(path ${CMAKE_SOURCE_DIR}/assets/${asset})
        set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${path})
        file(READ ${path} bytes HEX)
        string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
        string(REPLACE "." "_" name ${asset})
        string(APPEND text "const unsigned char cpl_asset_${name}[] = {${bytes}0};\n")
    endforeach()
    file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "${text}")
endfunction()
